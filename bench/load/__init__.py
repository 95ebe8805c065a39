"""Open-loop load from the command line; the generator itself is `loadgate.integrations.loadgen`.

It lives in the package because `loadgate demo` needs it wherever loadgate is installed.
"""
