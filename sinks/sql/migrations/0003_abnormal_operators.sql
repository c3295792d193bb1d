-- Which operators took longer than they should have: see detectors/abnormal_operators/replay.py.
ALTER TABLE operators ADD COLUMN IF NOT EXISTS
    abnormal_ratio Nullable(Float64) COMMENT 'Elapsed over what it would have been without what was slow in the iteration; above 1.1: abnormal; NULL: not judged'
    AFTER transfer_ns;

ALTER TABLE rank_iterations COMMENT COLUMN IF EXISTS score 'Largest score of the detectors: from 1 on strange; NULL: no opinion';
