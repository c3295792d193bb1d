-- How many verdicts of each severity are open.
SELECT
    countIf(severity = 'page') AS pages,
    countIf(severity = 'ticket') AS tickets,
    countIf(ifNull(severity, 'note') = 'note') AS notes
FROM incidents
WHERE state = 'open'
