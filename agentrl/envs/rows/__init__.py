"""Files and folders of rows: a format each, all read by position without loading the file."""
