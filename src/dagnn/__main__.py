"""`python -m dagnn`: the command."""

import sys

from dagnn.cli import main

if __name__ == "__main__":
    sys.exit(main())
