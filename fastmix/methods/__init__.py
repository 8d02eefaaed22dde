"""The mixing methods, one file each: a method is the few lines that draw its program."""
