-- How many verdicts of each severity are open, and what they cost together.
SELECT
    countIf(severity = 'page') AS pages,
    countIf(severity = 'ticket') AS tickets,
    countIf(ifNull(severity, 'note') = 'note') AS notes
FROM verdicts FINAL
WHERE state = 'open'
