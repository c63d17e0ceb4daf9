"""Section 11: kernels compiled once per content and found again, regions loaded, called, recorded and restored."""

import time

#: When this process began to load the package, in seconds since 1970: the package's sources may not be younger.
LOADED = time.time()
