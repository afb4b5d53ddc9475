"""ELF, the format of Linux: data as objects, names of symbols, weights behind a library, the C
library's stubs. `link/object_format.py` has its row; nothing else imports this."""
