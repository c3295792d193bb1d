-- Which operators took longer than they should have: see detectors/replay.py.
ALTER TABLE operators ADD COLUMN IF NOT EXISTS
    abnormal_ratio Nullable(Float64) COMMENT 'Elapsed over what it would have been without what was slow in the iteration; above 1.1: abnormal; NULL: not judged'
    AFTER transfer_ns;
