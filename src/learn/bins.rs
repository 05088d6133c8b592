//! Feature values discretised into bins. Comparing raw values with the cuts (`x <= cut`) is equivalent to comparing bins, so
//! trees that were grown on bins can be evaluated on raw values.

/// Cuts of one feature in ascending order: bin `b` holds the values above cut `b - 1` and at most cut `b`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cuts(pub Vec<f32>);

impl Cuts {
    /// At most `bins` bins: one for each distinct value if there are enough, else with about equally many values in each. NaN is
    /// ignored.
    pub fn of(values: impl Iterator<Item = f32>, bins: usize) -> Self {
        let mut values: Vec<f32> = values.filter(|value| !value.is_nan()).collect();
        values.sort_by(f32::total_cmp);
        // Distinct by comparison, so -0 equals 0.
        let mut distinct: Vec<(f32, usize)> = Vec::new();
        for value in values {
            match distinct.last_mut() {
                Some((last, count)) if *last == value => *count += 1,
                _ => distinct.push((value, 1)),
            }
        }
        Self(cuts(&distinct, bins.clamp(2, 255)))
    }

    /// The bin of a value; NaN goes to the last bin, since `x <= cut` is false for every cut.
    pub fn bin(&self, value: f32) -> u8 {
        let above = |cut: &f32| !matches!(value.partial_cmp(cut), Some(order) if order.is_le());
        self.0.partition_point(above) as u8
    }

    pub fn bins(&self) -> usize {
        self.0.len() + 1
    }
}

/// A value frequent enough to fill a bin gets its own; the other values share the remaining bins evenly (as LightGBM's
/// `GreedyFindBin`).
fn cuts(distinct: &[(f32, usize)], bins: usize) -> Vec<f32> {
    let pairs = distinct.windows(2).map(|pair| (pair[0], pair[1]));
    if distinct.len() <= bins {
        return pairs.filter_map(|(low, high)| between(low.0, high.0)).collect();
    }
    let rows: usize = distinct.iter().map(|(_, count)| count).sum();
    let fills = |count: usize| count * bins >= rows;
    let full = || distinct.iter().map(|(_, count)| *count).filter(|count| fills(*count));
    let (mut left, mut open) = (rows - full().sum::<usize>(), bins - full().count());
    let mut share = left as f64 / open.max(1) as f64;
    let (mut cuts, mut held) = (Vec::new(), 0);
    for ((low, count), (high, next)) in pairs {
        if cuts.len() + 1 >= bins {
            break;
        }
        held += count;
        left -= if fills(count) { 0 } else { count };
        let enough = held as f64 >= share || (fills(next) && held as f64 >= share / 2.0);
        if (fills(count) || enough)
            && let Some(cut) = between(low, high)
        {
            cuts.push(cut);
            held = 0;
            if !fills(count) {
                open = open.saturating_sub(1);
                share = left as f64 / open.max(1) as f64;
            }
        }
    }
    cuts
}

/// A finite number in `[low, high)`: the midpoint, if it is representable.
fn between(low: f32, high: f32) -> Option<f32> {
    let middle = low / 2.0 + high / 2.0;
    let separates = |cut: &f32| cut.is_finite() && low <= *cut && *cut < high;
    [middle, low, f32::MIN].into_iter().find(separates)
}

#[cfg(test)]
mod tests {
    use super::Cuts;

    fn agree(values: &[f32], bins: usize) -> Cuts {
        let cuts = Cuts::of(values.iter().copied(), bins);
        assert!(cuts.bins() <= bins, "{cuts:?}");
        assert!(cuts.0.windows(2).all(|pair| pair[0] < pair[1]), "{cuts:?}");
        assert!(cuts.0.iter().all(|cut| cut.is_finite()), "{cuts:?}");
        for &value in values {
            for (at, cut) in cuts.0.iter().enumerate() {
                assert_eq!(value <= *cut, usize::from(cuts.bin(value)) <= at, "{value} {cut}");
            }
        }
        cuts
    }

    #[test]
    fn comparing_with_cuts_agrees_with_bins() {
        let tiny = f32::from_bits(1);
        let next = f32::from_bits(1f32.to_bits() + 1);
        let hard = [
            0.0,
            -0.0,
            tiny,
            -tiny,
            1.0,
            next,
            f32::MAX,
            f32::MIN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            1e9,
            -1e9,
        ];
        let cuts = agree(&hard, 255);
        // All but NaN and one of the zeros are distinct; there is no finite number below MIN.
        assert_eq!(cuts.bins(), 10);
        assert_eq!(cuts.bin(-0.0), cuts.bin(0.0));
        assert_ne!(cuts.bin(1.0), cuts.bin(next));
        agree(&hard, 2);
        agree(&hard, 5);
    }

    #[test]
    fn a_constant_feature_has_no_cut() {
        assert_eq!(agree(&[3.0; 9], 255).bins(), 1);
        assert_eq!(agree(&[0.0, -0.0], 255).bins(), 1);
        assert_eq!(Cuts::of(std::iter::empty(), 255).bins(), 1);
        assert_eq!(Cuts::of([f32::NAN].into_iter(), 255).bins(), 1);
    }

    #[test]
    fn few_distinct_values_have_one_bin_each() {
        assert_eq!(agree(&[1.0, 2.0, 2.0, 4.0], 255).0, [1.5, 3.0]);
        assert_eq!(agree(&[1.0, 2.0, 4.0], 3).0, [1.5, 3.0]);
    }

    #[test]
    fn many_values_share_bins_evenly_but_a_frequent_one_gets_its_own() {
        let many: Vec<f32> = (0..1000).map(|i| i as f32).collect();
        let cuts = agree(&many, 10);
        assert_eq!(cuts.bins(), 10);
        let mut held = [0; 10];
        many.iter().for_each(|&value| held[usize::from(cuts.bin(value))] += 1);
        assert!(held.iter().all(|&count| count == 100), "{held:?}");
        let common = many.iter().copied().chain(std::iter::repeat_n(500.0, 5000));
        let cuts = agree(&common.clone().collect::<Vec<_>>(), 10);
        let bin = cuts.bin(500.0);
        let beside = common.filter(|&value| cuts.bin(value) == bin && value != 500.0).count();
        assert!(beside < 150, "{beside} values share the frequent value's bin");
    }
}
