"""What is wrong with an installation, one line a finding: read, checked, told. Start at `diagnosis.py`."""
