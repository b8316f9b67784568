//! The first half of a row's path: from the socket to the lane of its key.

use pgoutput_parser::{Change, Decoder, Frame, Insert, XLogData};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use walrelay_core::Routed;
use walrelay_pg_client::PgError;
use walrelay_pg_replication::{Feedback, Frames};

use super::{Flow, Source, TURN_MAX};
use crate::observe::ignored_changes::{OtherChange, log_ignored_table};
use crate::stream::already_recorded::Recorded;
use crate::stream::mode::SessionMode;
use crate::stream::outbox_tables::RowKind;
use crate::stream::pipeline_error::PipelineError;
use crate::stream::stop_position::StopPosition;

impl Flow {
    /// Takes one frame of the slot: the first half of a row's path.
    pub(super) fn process_frame<W: AsyncWrite + Unpin>(
        &mut self,
        frame: Frame<'_>,
        decoder: &mut Decoder,
        feedback: &mut Feedback<W>,
    ) -> Result<(), PipelineError> {
        let Self {
            router,
            recorded_rows,
            tables,
            continuity,
            tracker,
            source,
            extent,
            observer,
            ..
        } = self;
        let XLogData { wal_start: at, data, .. } = match frame {
            Frame::XLogData(data) => data,
            Frame::Keepalive(keepalive) => {
                feedback.note_keepalive(&keepalive);
                if let Some(boundary) = decoder.boundary(&keepalive) {
                    tracker.observe(boundary);
                    recorded_rows.reached(boundary.lsn());
                }
                return Ok(());
            }
        };
        match decoder.decode(data).map_err(|it| PipelineError::Decode { at, source: it })? {
            Change::Insert(row) => match tables.row(row.relation.id)? {
                RowKind::Event => {
                    continuity.row();
                    self.through = row.position;
                    self.admit(&row)?;
                }
                RowKind::Ignored { is_first } => {
                    if is_first {
                        log_ignored_table(row.relation);
                    }
                    observer.ignored(OtherChange::InsertElsewhere, at);
                }
            },
            Change::Begin(begin) if extent.ends_at(begin.final_lsn) => {
                *extent = StopPosition::Reached;
                feedback.received(begin.final_lsn);
                tracker.observe(begin.boundary_before());
                recorded_rows.reached(begin.final_lsn);
            }
            Change::Begin(begin) => {
                tracker.begin(begin.commit_timestamp);
                tables.begin(begin.final_lsn);
                recorded_rows.begin(begin.final_lsn);
                if let Source::Replay(selected) = source {
                    selected.begin(&begin);
                }
            }
            Change::Commit(commit) => {
                feedback.received(commit.end_lsn);
                tracker.seal(commit.boundary(), continuity.commit());
                recorded_rows.reached(commit.end_lsn);
                if decoder.is_nearly_full() {
                    return Err(PipelineError::ManyTables);
                }
            }
            Change::Relation(relation) => {
                continuity.relation(relation.id);
                if tables.describe(relation) {
                    router.learn(relation)?;
                }
            }
            // Events are inserts. Retention deletes rows, and other relays of a table update them.
            Change::Update(_) => observer.ignored(OtherChange::Update, at),
            Change::Delete(_) => observer.ignored(OtherChange::Delete, at),
            Change::Truncate(_) => observer.ignored(OtherChange::Truncate, at),
            Change::Type(_) | Change::Origin(_) | Change::Message(_) => {}
        }
        Ok(())
    }

    /// Takes frames that are already in the buffer, up to the limit of one iteration.
    pub(super) fn process_buffered_frames<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
        &mut self,
        frames: &mut Frames<R>,
        decoder: &mut Decoder,
        feedback: &mut Feedback<W>,
        mode: SessionMode,
    ) -> Result<(), PipelineError> {
        for _ in 1..TURN_MAX {
            if !self.may_read(mode) {
                break;
            }
            let another = frames.buffered().map_err(|error| self.broken_off(error, decoder))?;
            let Some(another) = another else { break };
            self.process_frame(another, decoder, feedback)?;
        }
        Ok(())
    }

    /// Returns the error at the end of the stream. A permanent one names its place in the WAL.
    pub(in crate::stream) fn broken_off(&self, error: PgError, decoder: &Decoder) -> PipelineError {
        PipelineError::of_stream(error, decoder.next_position(), self.through)
    }

    /// Takes one row from any source. The row is already settled, or joins the lane of its key.
    fn admit(&mut self, row: &Insert<'_>) -> Result<(), PipelineError> {
        if self.is_settled(row)? {
            let ticket = self.tracker.open();
            self.tracker.settle(ticket);
            return Ok(());
        }
        let Routed { message, fault, headers_left_out, event_type } = self.router.route(row)?;
        let ticket = self.tracker.open();
        self.budget.take(message.memory());
        self.observer.row_read(message.topic(), event_type, headers_left_out);
        match fault {
            None => self.lanes.push(message, ticket),
            Some(fault) => {
                let failure = fault.into_failure();
                self.lanes.push_dead(message, ticket, &failure, Instant::now().into_std());
            }
        }
        Ok(())
    }

    /// Returns whether the row needs no publishing: already recorded, or outside the replay.
    fn is_settled(&mut self, row: &Insert<'_>) -> Result<bool, PipelineError> {
        let Self { router, recorded_rows, observer, source, .. } = self;
        if let Source::Replay(selected) = source {
            return Ok(!selected.has(row, router)?);
        }
        match recorded_rows.at(row.position, || router.event_id(row))? {
            // The row is in dispatch state since an earlier session, so it is settled in every
            // status (I2).
            Recorded::ThisRow => Ok(true),
            Recorded::OtherRows => {
                observer.misplaced_row(row.position);
                Ok(false)
            }
            Recorded::Nothing => Ok(false),
        }
    }
}
