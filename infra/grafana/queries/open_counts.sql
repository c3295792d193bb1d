-- How many verdicts of each severity are open; a job that hangs counts, though its verdict is closed.
SELECT
    countIf(severity = 'page') AS pages,
    countIf(severity = 'ticket') AS tickets,
    countIf(ifNull(severity, 'note') = 'note') AS notes
FROM incidents
WHERE state = 'open'
