//! Number formatting for display: three or four significant digits and a suitable unit.

/// Microseconds with a unit that leaves one to three digits before the point: `96.8 µs`, `1.24 ms`, `2.50 s`.
pub fn micros(us: f64) -> String {
    if us < 1e3 {
        format!("{} µs", digits(us))
    } else if us < 1e6 {
        format!("{} ms", digits(us / 1e3))
    } else {
        format!("{} s", digits(us / 1e6))
    }
}

/// Three significant digits, without an exponent: `0.0123`, `1.23`, `12.3`, `123`, `12345`.
pub fn digits(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    let size = if value == 0.0 { 0 } else { value.abs().log10().floor() as i32 };
    let places = usize::try_from((2 - size).clamp(0, 9)).unwrap_or(0);
    format!("{value:.places$}")
}

/// `5,054,400`.
pub fn count(value: u64) -> String {
    let plain = value.to_string();
    let mut out = String::with_capacity(plain.len() + plain.len() / 3);
    for (at, digit) in plain.chars().enumerate() {
        if at > 0 && (plain.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 candidate`, `1,234 candidates`.
pub fn candidates(value: u64) -> String {
    let s = if value == 1 { "" } else { "s" };
    format!("{} candidate{s}", count(value))
}

/// A ratio of times: `2.51×`.
pub fn times(ratio: f64) -> String {
    format!("{}×", digits(ratio))
}

/// `83 %`; with one decimal place below ten.
pub fn percent(fraction: f64) -> String {
    let value = fraction * 100.0;
    if value.abs() < 10.0 { format!("{value:.1} %") } else { format!("{value:.0} %") }
}

/// A correlation with a typographic minus: `−0.43`, `0.62`.
pub fn correlation(rank: f64) -> String {
    let text = format!("{:.2}", rank.abs());
    if rank < 0.0 && text != "0.00" { format!("\u{2212}{text}") } else { text }
}

/// A duration in its largest suitable unit: `45 s`, `3 min`, `2 h`, `5 d`.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.0} h", s / 3600.0),
        s => format!("{:.0} d", s / 86_400.0),
    }
}
