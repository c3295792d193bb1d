"""x."""
import sys
