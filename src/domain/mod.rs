//! The domain types: no I/O, no async, and no dependency on other modules.

pub mod candidate;
pub mod catalog;
pub mod device;
pub mod digest;
pub mod event;
pub mod funnel;
pub mod job;
pub mod learned;
pub mod matrix;
pub mod model;
pub mod outcome;
pub mod plan;
pub mod problem;
pub mod profile;
pub mod protocol;
pub mod recipe;
pub mod timestamp;
pub mod training;
pub mod trial;

pub use candidate::{Candidate, CandidateId, Param};
pub use catalog::operation::Op;
pub use device::{Device, DeviceClass, DeviceId, DeviceKind};
pub use digest::Digest;
pub use event::{Event, EventKind};
pub use funnel::FunnelStep;
pub use job::{Job, JobId, JobRequest, JobState, Search, SearchStrategy, Stage, StoppedBy};
pub use learned::{JobFeatures, LearnedModel, Learner, ModelId, TrainingId};
pub use matrix::{Features, Matrix};
pub use model::ModelQuality;
pub use outcome::{KernelFigures, Outcome, Resources, Timing};
pub use plan::{Grade, Lookup, Plan, PlanId};
pub use problem::{Dtype, L2Policy, Layout, Problem, Spmm, Sptrsv};
pub use profile::MatrixProfile;
pub use timestamp::Timestamp;
pub use training::{TrainRequest, Training};
pub use trial::{Trial, TrialCount, TrialFilter, TrialState};
