"""The built-in policies, one file each; the file name is the policy's name."""
