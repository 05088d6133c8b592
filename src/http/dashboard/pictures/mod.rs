//! Pictures as SVG, drawn on the server: geometry here, marks in `web/templates/pictures`, colours in the style sheet.
//!
//! A picture is a struct with a template, so a page holds it as a field and writes `{{ funnel|safe }}` where it stands.
//! Text in a picture is text; every picture has a title and a description for those who do not see it.

pub mod bars;
pub mod comparison;
pub mod funnel;
pub mod heat_map;
pub mod histogram;
pub mod level_widths;
pub mod roofline;
pub mod scale;
