//! How many candidates each constraint removed, as a picture.
