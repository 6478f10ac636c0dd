"""How the application takes records: in lists, in columns, one by one."""
