//! Predicted, measured and limit on the roofline of a device.
