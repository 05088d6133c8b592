//! The orders in which lists are read: by what has an index, so that a page of a whole list costs what it shows. Of a list that is filtered, or
//! searched for a name, the newest 20,000 that its filter's index finds are sorted, so that a page costs what these do at most.

use serde::Deserialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    Asc,
    Desc,
}

impl Direction {
    pub const ALL: [Self; 2] = [Self::Asc, Self::Desc];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Asc => "asc",
            Self::Desc => "desc",
        }
    }
}

/// What a list can be sorted by.
pub trait Column: Copy + PartialEq + Sized + 'static {
    /// The first is that of lists whose order nobody asks for.
    const ALL: &'static [Self];
    fn name(self) -> &'static str;
    /// The direction of a list whose client gives none: what is looked for comes first.
    fn natural(self) -> Direction;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MatrixColumn {
    CreatedAt,
    /// By its first 64 characters, whatever the case of ASCII letters.
    Name,
    Rows,
    Nnz,
}

impl Column for MatrixColumn {
    const ALL: &'static [Self] = &[Self::CreatedAt, Self::Name, Self::Rows, Self::Nnz];

    fn name(self) -> &'static str {
        match self {
            Self::CreatedAt => "created_at",
            Self::Name => "name",
            Self::Rows => "rows",
            Self::Nnz => "nnz",
        }
    }

    fn natural(self) -> Direction {
        match self {
            Self::Name => Direction::Asc,
            Self::CreatedAt | Self::Rows | Self::Nnz => Direction::Desc,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobColumn {
    CreatedAt,
    /// From the start to the end of jobs that have ended.
    Took,
    /// Of the best candidate so far: its time,
    MedianUs,
    /// and how often it goes into the baseline's.
    Speedup,
}

impl Column for JobColumn {
    const ALL: &'static [Self] = &[Self::CreatedAt, Self::Took, Self::MedianUs, Self::Speedup];

    fn name(self) -> &'static str {
        match self {
            Self::CreatedAt => "created_at",
            Self::Took => "took",
            Self::MedianUs => "median_us",
            Self::Speedup => "speedup",
        }
    }

    fn natural(self) -> Direction {
        match self {
            Self::MedianUs => Direction::Asc,
            Self::CreatedAt | Self::Took | Self::Speedup => Direction::Desc,
        }
    }
}

/// Rows without a value come last in either direction, and rows of one value by what names them. A page begins behind the value of the
/// last row shown, so that what is added or removed meanwhile moves nothing else; a row whose own value changes is met where it is then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order<C> {
    pub by: C,
    pub direction: Direction,
}

impl<C: Column> Order<C> {
    pub fn of(by: C, direction: Option<Direction>) -> Self {
        Self { by, direction: direction.unwrap_or_else(|| by.natural()) }
    }

    /// What a client asked for, who may give the direction alone.
    pub fn asked(by: Option<C>, direction: Option<Direction>) -> Self {
        match by {
            Some(by) => Self::of(by, direction),
            None => Self { direction: direction.unwrap_or(Direction::Desc), ..Self::default() },
        }
    }

    pub fn by_name(self) -> &'static str {
        self.by.name()
    }

    /// That of lists whose order nobody asks for.
    pub fn is_default(self) -> bool {
        self == Self::default()
    }
}

/// Newest first.
impl<C: Column> Default for Order<C> {
    fn default() -> Self {
        Self { by: C::ALL[0], direction: Direction::Desc }
    }
}

pub type MatrixOrder = Order<MatrixColumn>;
pub type JobOrder = Order<JobColumn>;

#[cfg(test)]
mod tests {
    use super::*;

    fn named<C: Column + for<'a> Deserialize<'a>>() {
        for column in C::ALL {
            let read: C = serde_json::from_value(column.name().into()).unwrap();
            assert!(read == *column, "{}", column.name());
        }
        assert_eq!(C::ALL[0].natural(), Direction::Desc);
    }

    #[test]
    fn columns_have_the_names_by_which_they_are_read() {
        named::<MatrixColumn>();
        named::<JobColumn>();
        for direction in Direction::ALL {
            let read: Direction = serde_json::from_value(direction.name().into()).unwrap();
            assert_eq!(read, direction);
        }
    }

    #[test]
    fn nobody_asks_for_the_newest_first() {
        assert!(JobOrder::asked(None, None).is_default());
        assert!(!JobOrder::asked(None, Some(Direction::Asc)).is_default());
        assert!(MatrixOrder::of(MatrixColumn::CreatedAt, None).is_default());
        let fastest = JobOrder::asked(Some(JobColumn::MedianUs), None);
        assert_eq!(fastest.direction, Direction::Asc);
    }
}
