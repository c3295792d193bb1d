"""Installs Irregulars elsewhere: container images, Kubernetes, systemd. Start with `locked_install.py`."""
