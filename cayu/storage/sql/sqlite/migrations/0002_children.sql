CREATE INDEX streams_by_parent ON streams (parent_session_id) WHERE parent_session_id IS NOT NULL;
