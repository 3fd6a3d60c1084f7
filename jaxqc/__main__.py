"""`python -m jaxqc`: the shell command."""

import sys

from jaxqc.cli import main

if __name__ == "__main__":
    sys.exit(main())
