"""`python -m tensorkiln` is `kiln`, for where its script is not in PATH."""

import sys

from tensorkiln.cli import main

sys.exit(main())
