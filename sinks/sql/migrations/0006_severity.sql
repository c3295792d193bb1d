-- How urgent a verdict is, and what setting its first suspect right would win back: see infra/docs/judgement.md. Verdicts
-- of older workers have neither.
ALTER TABLE verdicts ADD COLUMN IF NOT EXISTS
    severity LowCardinality(Nullable(String)) COMMENT 'How urgent, by what is lost, the worst so far: note, ticket or page; NULL: nobody said'
    AFTER close_reason;

ALTER TABLE verdicts ADD COLUMN IF NOT EXISTS
    recovers_ratio Nullable(Float64) COMMENT 'Share of what the iterations took longer that would come back with the first suspect as usual, 0 to 1; NULL: not known'
    AFTER severity;

ALTER TABLE verdicts COMMENT COLUMN IF EXISTS event 'What this revision is: opened, changed, raised, continued or closed';
