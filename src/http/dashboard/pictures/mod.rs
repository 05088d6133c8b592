//! SVG charts rendered on the server: geometry here on the axes of `charts`, markup in `web/templates/pictures`, colours in the style sheet.
//!
//! A chart is a struct with a template; a page has it as a field and writes `{{ funnel|safe }}` to insert it. Text in a
//! chart is real text, and every chart has a title and a description for screen readers.

pub mod comparison;
pub mod dots;
pub mod funnel;
pub mod heat_map;
pub mod histogram;
pub mod history;
pub mod level_widths;
pub mod roofline;
