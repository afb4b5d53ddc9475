"""Analysis of device functions: what threads of a block access between barriers."""
