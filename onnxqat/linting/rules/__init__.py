"""The rules, one file a family: each has ``RULES``. Rules of ``target_*`` files need a backend's table."""
