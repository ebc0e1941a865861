"""The clock by which we compare our time with the network's."""

import time

now_s = time.thread_time
"""Of the processor, for this thread: neither other processes count nor waiting for data."""
