"""`python -m tensorkiln.cli` is `kiln`."""

import sys

from tensorkiln.cli import main

if __name__ == "__main__":
    sys.exit(main())
