"""What installs Irregulars on other machines: container images, Kubernetes, systemd. Start with `locked_install.py`."""
