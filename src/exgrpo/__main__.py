"""`python -m exgrpo` is the command line."""

import sys

from exgrpo.cli.main import main

sys.exit(main())
