"""Run a load plan from standard input; `process.run_elsewhere` starts this."""

from loadgate.integrations.loadgen.process import serve_stdin

serve_stdin()
