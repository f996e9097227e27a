"""The built-in routers."""
