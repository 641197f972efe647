"""`python -m npu.cli` is the command `npu`."""

import sys

from npu.cli import main

sys.exit(main())
