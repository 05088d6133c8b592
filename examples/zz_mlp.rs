use sparsetune::domain::learned::{Op, Scope};
use sparsetune::domain::*;
use sparsetune::learn::judge::{Trainer, cross_validate};
use sparsetune::learn::*;
use sparsetune::ops::features;
use sparsetune::store::{Learning, SqliteStore};
#[tokio::main]
async fn main() {
    let a: Vec<String> = std::env::args().collect();
    let store = SqliteStore::open(std::path::Path::new(&a[1])).await.unwrap();
    let op = if a[2] == "spmm" { Op::Spmm } else { Op::Sptrsv };
    let (shared, own) = features::names(op);
    let scope =
        Scope { op, device_class: DeviceClass("cuda/NVIDIA H100 80GB HBM3/cc9.0/132sm".into()) };
    let mut data = Dataset { shared: shared.clone(), own, groups: vec![] };
    let mut after = None;
    loop {
        let page =
            store.training_groups(&scope, features::VERSION, after.as_ref(), 64).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.job.clone());
        for g in page {
            let rows: Vec<Row> = g
                .rows
                .into_iter()
                .map(|r| Row {
                    candidate: r.candidate.to_string(),
                    predicted_us: (r.own[0] as f64).exp2() - 1.0,
                    us: r.us.unwrap_or(f64::INFINITY),
                    own: r.own,
                })
                .collect();
            if rows.iter().filter(|r| r.us.is_finite()).count() < 8 {
                continue;
            }
            data.groups.push(Group {
                pattern: g.features.pattern.to_string(),
                shared: g.features.shared,
                rows,
            });
        }
    }
    println!("{} groups", data.groups.len());
    let ids = |f: &dyn Fn(&str) -> bool| -> Vec<u16> {
        shared.iter().enumerate().filter(|(_, n)| f(n)).map(|(i, _)| i as u16).collect()
    };
    let ten = ids(&|n| {
        [
            "m", "nnz", "rnnz_avg", "rnnz_max", "rnnz_cov", "lnnz_avg", "lnnz_max", "lnnz_cov",
            "levels", "dep_dist",
        ]
        .contains(&n)
    });
    let tenp = ids(&|n| {
        [
            "m",
            "nnz",
            "rnnz_avg",
            "rnnz_max",
            "rnnz_cov",
            "lnnz_avg",
            "lnnz_max",
            "lnnz_cov",
            "levels",
            "dep_dist",
            "rhs",
            "element_bytes",
            "rewritten",
        ]
        .contains(&n)
    });
    let some = ids(&|n| {
        [
            "m",
            "rnnz_avg",
            "lnnz_avg",
            "levels",
            "rhs",
            "element_bytes",
            "rewritten",
            "windows_500",
            "windows_1000",
            "windows_4000",
            "window_terms_1000",
            "window_terms_4000",
            "window_longest_1000",
        ]
        .contains(&n)
    });
    let all = ids(&|n| !n.starts_with("device_"));
    let base = mlp::Params::default();
    let mut p: Vec<(String, Vec<u16>, mlp::Params)> = vec![];
    for (n, inp) in [("ten", &ten), ("tenp", &tenp), ("some", &some), ("all", &all)] {
        p.push((format!("{n}"), inp.clone(), base.clone()));
        if a.len() > 3 {
            continue;
        }
        p.push((format!("{n} decay.1"), inp.clone(), mlp::Params { decay: 0.1, ..base.clone() }));
        p.push((format!("{n} min4"), inp.clone(), mlp::Params { min_groups: 4, ..base.clone() }));
        p.push((format!("{n} min16"), inp.clone(), mlp::Params { min_groups: 16, ..base.clone() }));
        p.push((
            format!("{n} clip3 m6"),
            inp.clone(),
            mlp::Params { clip: 3.0, members: 6, ..base.clone() },
        ));
    }
    if op == Op::Sptrsv {
        for (name, inp, par) in &p {
            let t = std::time::Instant::now();
            let trainers = vec![Trainer::mlp(inp, par)];
            let j = cross_validate(&data, &trainers, 5, 1, &mut |_| true).unwrap();
            let c = &j.held_out.choosers[0];
            let at = |k: u32| c.at.iter().find(|x| x.k == k).unwrap();
            println!(
                "{name:20} K1 {:.3} K8 {:.3} w85@1 {:.3} w85@8 {:.3} {:.0}s",
                at(1).share,
                at(8).share,
                at(1).within_85,
                at(8).within_85,
                t.elapsed().as_secs_f64()
            );
        }
    }
    let bp = lambdamart::Params::default();
    for (name, par) in [
        ("base", bp.clone()),
        ("l15", lambdamart::Params { leaves: 15, min_rows: 20, ..bp.clone() }),
        ("noprior", lambdamart::Params { prior: 0.0, ..bp.clone() }),
        ("p8", lambdamart::Params { gain: lambdamart::Gain::Power(8.0), ..bp.clone() }),
        ("trunc10", lambdamart::Params { truncation: 10, ..bp.clone() }),
        (
            "fs.5 r.05",
            lambdamart::Params { feature_share: 0.5, rate: 0.05, trees: 500, ..bp.clone() },
        ),
    ] {
        let t = std::time::Instant::now();
        let train: sparsetune::learn::judge::Train<'_> = Box::new(move |d, tr, ho, pr| {
            lambdamart::train(d, tr, ho, &par, pr).map(Model::Lambdamart)
        });
        let trainers = vec![Trainer { learner: Learner::Lambdamart, train }];
        let j = cross_validate(&data, &trainers, 5, 1, &mut |_| true).unwrap();
        let c = &j.held_out.choosers[0];
        let at = |k: u32| c.at.iter().find(|x| x.k == k).unwrap();
        println!(
            "lm {name:17} K1 {:.3} K8 {:.3} K10 {:.3} w85@1 {:.3} w85@8 {:.3} {:.0}s",
            at(1).share,
            at(8).share,
            at(10).share,
            at(1).within_85,
            at(8).within_85,
            t.elapsed().as_secs_f64()
        );
    }
}
