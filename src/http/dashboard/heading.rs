//! Headings of tables that the server sorts: a link each, so that they work without scripts and an order has an address.

use crate::service::{Column, Direction, Order};

/// The heading of one column.
#[derive(Debug, PartialEq, Eq)]
pub struct Heading {
    name: &'static str,
    /// The list sorted by it: as it is looked for most, or the other way round if it is sorted so.
    pub address: String,
    /// For `aria-sort`, of the column that the list is sorted by.
    pub sorted: Option<&'static str>,
}

/// The headings of a list.
#[derive(Debug, Default)]
pub struct Headings(Vec<Heading>);

impl Headings {
    /// `address` makes the address of the list in an order.
    pub fn of<C: Column>(order: Order<C>, address: impl Fn(Order<C>) -> String) -> Self {
        let heading = |by: C| {
            let sorted = by == order.by;
            let direction = match (sorted && order.direction == by.natural(), by.natural()) {
                (true, Direction::Asc) | (false, Direction::Desc) => Direction::Desc,
                (true, Direction::Desc) | (false, Direction::Asc) => Direction::Asc,
            };
            let way = match order.direction {
                Direction::Asc => "ascending",
                Direction::Desc => "descending",
            };
            let to = Order { by, direction };
            Heading { name: by.name(), address: address(to), sorted: sorted.then_some(way) }
        };
        Self(C::ALL.iter().map(|by| heading(*by)).collect())
    }

    /// `None` if there is no such column, which a template would show as a plain heading.
    pub fn get(&self, name: &str) -> Option<&Heading> {
        self.0.iter().find(|heading| heading.name == name)
    }
}

/// The parameters of an order; those of the default are left out.
pub fn parameters<C: Column>(order: Order<C>) -> [(&'static str, Option<&'static str>); 2] {
    let named = !order.is_default();
    [("sort", named.then_some(order.by.name())), ("order", named.then_some(order.direction.name()))]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::{JobColumn, JobOrder};

    fn headings(order: JobOrder) -> Headings {
        Headings::of(order, |to| {
            let given = parameters(to).into_iter().filter_map(|(_, value)| value);
            given.collect::<Vec<_>>().join(" ")
        })
    }

    #[test]
    fn a_heading_sorts_and_turns() {
        let newest = headings(JobOrder::default());
        let told = |headings: &Headings, name: &str| {
            let heading = headings.get(name).unwrap();
            (heading.address.clone(), heading.sorted)
        };
        assert_eq!(told(&newest, "created_at"), ("created_at asc".to_owned(), Some("descending")));
        assert_eq!(told(&newest, "median_us"), ("median_us asc".to_owned(), None));
        let fastest = headings(JobOrder::of(JobColumn::MedianUs, None));
        assert_eq!(told(&fastest, "median_us"), ("median_us desc".to_owned(), Some("ascending")));
        // The order that nobody asks for needs no parameters.
        assert_eq!(told(&fastest, "created_at"), (String::new(), None));
        let slowest = headings(JobOrder::of(JobColumn::MedianUs, Some(Direction::Desc)));
        assert_eq!(told(&slowest, "median_us"), ("median_us asc".to_owned(), Some("descending")));
        assert_eq!(newest.get("state"), None);
    }
}
