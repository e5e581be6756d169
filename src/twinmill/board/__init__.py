"""Read-only views over a run: nothing here changes what it looks at.

points    the metric lines, typed
state     RunView: one fold over all lines; what every view below reads
follow    the lines that are new since the last look
units     numbers as short text
live      the terminal while the run goes on (panels draws it); plain lines where there is no terminal
summary   the figures of a run, as rows; the table at its end
theme, curves, lanes, report    report.html and report.png
episodes  one episode, turn by turn, and lists of them
weights   the weights log as a table
doctor    what this machine can do, and how to mend the rest
"""
