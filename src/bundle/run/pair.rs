//! Two plans that are run by one call: the second solves with what the first has computed.

use super::super::host::SolveValues;
use super::{LoadedPlan, RunError, Runner};
use crate::domain::bundle::{Call, UpdateValues};
use crate::engine::cuda::{CudaLink, CudaPlan, Replacement};
use std::sync::{Mutex, PoisonError};

/// Both plans, and what is between them.
pub(super) struct Linked {
    /// In the memory of the plans' GPU. Dropped before them, and so before their context.
    link: Option<CudaLink>,
    pub(super) first: LoadedPlan,
    pub(super) second: LoadedPlan,
    /// The vector between them in host memory, in words that suit every element. Calls wait for each other here.
    between: Mutex<Vec<u64>>,
    /// An update has reached the first plan and not the second, whose device has failed.
    torn: bool,
}

impl Linked {
    pub(super) fn new(first: LoadedPlan, second: LoadedPlan) -> Result<Self, RunError> {
        let link = match [first.on_gpu(), second.on_gpu()] {
            [Some(one), Some(two)] => Some(CudaLink::new(one, two)?),
            _ => None,
        };
        Ok(Self { link, first, second, between: Mutex::default(), torn: false })
    }

    /// The operands of a call of both.
    pub(super) fn call(&self) -> Call {
        let (first, second) = (self.first.call(), self.second.call());
        Call {
            b: first.b.clone(),
            c: second.c.clone(),
            accumulate: false,
            b_must_be_finite: first.b_must_be_finite || second.b_must_be_finite,
        }
    }

    pub(super) fn run_on_host(&self, b: &[u8], c: &mut [u8]) -> Result<(), RunError> {
        self.whole()?;
        if let (Some(link), Some(plans)) = (&self.link, self.on_gpu()) {
            return Ok(link.call_on_host(plans, b, c)?);
        }
        let mut words = self.between.lock().unwrap_or_else(PoisonError::into_inner);
        words.resize(c.len().div_ceil(size_of::<u64>()), 0);
        let between = &mut bytemuck::cast_slice_mut(&mut words)[..c.len()];
        self.first.run_on_host(b, between, 1.0, 0.0)?;
        self.second.run_on_host(between, c, 1.0, 0.0)
    }

    /// As [`LoadedPlan::run_on_device`].
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn run_on_device(&self, b: u64, c: u64, stream: u64) -> Result<(), RunError> {
        self.whole()?;
        let (Some(link), Some(plans)) = (&self.link, self.on_gpu()) else {
            return Err(super::on_host());
        };
        // Before either is queued.
        self.first.ready(1.0, 0.0)?;
        self.second.ready(1.0, 0.0)?;
        // SAFETY: the caller's.
        Ok(unsafe { link.run(plans, b, c, stream) }?)
    }

    pub(super) fn update_values(&mut self, values: &[f64]) -> Result<(), RunError> {
        self.first.check_values(values)?;
        self.second.check_values(values)?;
        self.possible()?;
        // Whatever one of them refuses, such as a pivot that is zero in its type, it refuses here, before either takes them.
        let (first, second) = (self.first.prepared(values)?, self.second.prepared(values)?);
        self.first.put(first, values)?;
        self.torn = true;
        self.second.put(second, values)?;
        self.torn = false;
        Ok(())
    }

    /// As [`LoadedPlan::update_values_on_device`].
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn update_values_on_device(
        &mut self,
        values: u64,
        stream: u64,
    ) -> Result<(), RunError> {
        self.possible()?;
        let Some(plans) = self.on_gpu() else { return Err(super::on_host()) };
        if self.first.is_made_on_host() || self.second.is_made_on_host() {
            // SAFETY: the caller's. Both plans have elements of one type.
            let values = unsafe { plans[0].values_on_host(values, stream) }?;
            return self.update_values(&values);
        }
        // Before either is queued: half of an update in a graph would be of no use.
        for plan in plans {
            plan.may_take_on_device(stream)?;
        }
        // SAFETY: the caller's.
        unsafe { self.first.update_values_on_device(values, stream) }?;
        self.torn = true;
        // SAFETY: the caller's.
        unsafe { self.second.update_values_on_device(values, stream) }?;
        self.torn = false;
        Ok(())
    }

    /// Both are asked, since each forgets by being asked.
    pub(super) fn gave_up(&self) -> Result<bool, RunError> {
        let first = self.first.gave_up()?;
        Ok(self.second.gave_up()? || first)
    }

    fn on_gpu(&self) -> Option<[&CudaPlan; 2]> {
        Some([self.first.on_gpu()?, self.second.on_gpu()?])
    }

    fn possible(&self) -> Result<(), RunError> {
        for bundle in [&self.first, &self.second].into_iter().filter_map(LoadedPlan::bundle) {
            if let UpdateValues::Impossible { reason } = &bundle.manifest().update_values {
                let why = format!("the values of this plan cannot be updated: {reason}");
                return Err(RunError::Operands(why));
            }
        }
        Ok(())
    }

    fn whole(&self) -> Result<(), RunError> {
        match self.torn {
            false => Ok(()),
            true => Err(RunError::Operands(
                "new values have reached the first plan of the pair and not the second: update the values again".to_owned(),
            )),
        }
    }
}

/// New values that a plan has accepted.
enum Prepared {
    Host(SolveValues),
    /// Arrays that were made again.
    Made(Box<Replacement>),
    /// They are put in place as they are.
    Placed,
}

impl LoadedPlan {
    fn prepared(&self, values: &[f64]) -> Result<Prepared, RunError> {
        match (&self.runner, &self.bundle) {
            (Runner::Host(host), bundle) => {
                if let Some(bundle) = bundle {
                    super::gathers(&bundle.manifest().update_values)?;
                }
                Ok(Prepared::Host(host.prepared(values)?))
            }
            (Runner::Cuda(plan), Some(bundle)) => {
                let made = super::super::update::prepared(plan, bundle, values)?;
                Ok(made.map_or(Prepared::Placed, |made| Prepared::Made(Box::new(made))))
            }
            (Runner::Cuda(_) | Runner::Pair(_), _) => Err(RunError::NoValues),
        }
    }

    /// Puts values in place that [`Self::prepared`] has accepted.
    fn put(&mut self, new: Prepared, values: &[f64]) -> Result<(), RunError> {
        match (&mut self.runner, new) {
            (Runner::Host(host), Prepared::Host(new)) => host.put(new)?,
            (Runner::Cuda(plan), Prepared::Made(new)) => plan.put(*new)?,
            _ => return self.update_values(values),
        }
        self.updated = true;
        self.without_values = false;
        Ok(())
    }

    /// Whether new values need arrays that the host makes of them.
    fn is_made_on_host(&self) -> bool {
        let update = self.bundle.as_ref().map(|bundle| &bundle.manifest().update_values);
        matches!(update, Some(UpdateValues::Host(_)))
    }

    fn on_gpu(&self) -> Option<&CudaPlan> {
        match &self.runner {
            Runner::Cuda(plan) => Some(plan),
            Runner::Host(_) | Runner::Pair(_) => None,
        }
    }
}
