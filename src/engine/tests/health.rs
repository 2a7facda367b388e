//! Verdicts of health checks, and the engine's agreement with the prober on who is in which state.

use super::world::*;
use crate::{
    datapath::{Membership, Step},
    health::Report,
    model::{HealthCheck, InitialState, Service, Verdict},
};

fn trusting(service: Service) -> Service {
    let health = HealthCheck { initial: InitialState::Up, ..HealthCheck::default() };
    Service { health, ..service }
}

#[test]
fn verdicts_make_one_publication() {
    let mut world = World::new();
    world.desire_and_apply(&[trusting(service(1, &[1, 2])), trusting(service(2, &[1, 3]))]);
    for (service, number) in [("s1", 1), ("s2", 1)] {
        world.probe(service, backend(number), DOWN);
    }
    let (applied, log) = world.apply();
    let down = Membership::Member(DOWN);
    assert_eq!(log, [Step::WriteLink(1, down), Step::WriteLink(6, down), Step::Publish(vec![1, 2])]);
    assert_eq!(applied.tables, 2);
    assert_eq!(world.led_to(1), [backend(2)].into());
    assert_eq!(world.led_to(2), [backend(3)].into());
    world.assert_as_new();
}

#[test]
fn a_backend_that_is_up_again_is_marked_before_a_table_leads_to_it() {
    let mut world = World::new();
    world.desire_and_apply(&[probed(service(1, &[1, 2]))]);
    world.probe("s1", backend(2), UP);
    assert_eq!(world.apply().1, [Step::WriteLink(2, Membership::Member(UP)), Step::Publish(vec![1])]);
}

#[test]
fn with_all_down_the_table_leads_nowhere() {
    let mut world = World::new();
    world.desire_and_apply(&[trusting(service(1, &[1, 2]))]);
    for number in [1, 2] {
        world.probe("s1", backend(number), DOWN);
    }
    world.apply();
    assert_eq!(world.led_to(1), [].into());
    let id = world.id(1);
    assert_eq!(world.memory().tables[&id].len(), crate::maglev::table_size(2) as usize);
    world.assert_as_new();
    world.probe("s1", backend(2), UP);
    world.apply();
    assert_eq!(world.led_to(1), [backend(2)].into(), "the only one takes all");
}

#[test]
fn verdicts_of_one_service_do_not_wait_for_the_next_hops_of_another() {
    let mut world = World::new();
    world.desire_and_apply(&[trusting(service(1, &[1])), trusting(service(2, &[2, 3]))]);
    world.route(backend(1), next_hop(1, 9));
    world.probe("s2", backend(2), DOWN);
    let (_, log) = world.apply();
    assert_eq!(log[0], Step::WriteLink(7 - 1, Membership::Member(DOWN)), "first of all");
    world.assert_as_new();
}

#[test]
fn a_late_report_of_a_check_that_was_switched_off_changes_nothing() {
    let mut world = World::new();
    world.desire_and_apply(&[trusting(service(1, &[1, 2]))]);
    world.desire_and_apply(&[service(1, &[1, 2])]);
    let report = Report {
        service: name("s1"),
        backend: backend(1),
        verdict: Some(Verdict::Down),
        last_failure: Some("refused".to_owned()),
    };
    world.engine.report(report);
    assert_eq!(world.apply().1, [], "nobody would ever report it up again");
    assert_eq!(world.led_to(1), [backend(1), backend(2)].into());
}

#[test]
fn a_check_that_is_switched_on_begins_with_what_runs() {
    let mut world = World::new();
    world.desire_and_apply(&[service(1, &[1, 2])]);
    assert_eq!(world.desire_and_apply(&[probed(service(1, &[1, 2]))]).1, []);
    assert!(world.engine.probe_targets().iter().all(|target| target.known == Some(UP)));
    world.probe("s1", backend(1), DOWN);
    world.apply();
    assert_eq!(world.led_to(1), [backend(2)].into());
    world.desire_and_apply(&[service(1, &[1, 2])]);
    assert_eq!(world.led_to(1), [backend(1), backend(2)].into(), "without a check everybody is trusted");
    world.assert_as_new();
}

#[test]
fn a_service_that_gets_another_address_keeps_the_health_that_the_prober_knows() {
    let mut world = World::new();
    world.desire_and_apply(&[probed(service(1, &[1, 2]))]);
    world.probe("s1", backend(1), UP);
    world.apply();
    let elsewhere = Service { address: vip(9), ..probed(service(1, &[1, 2])) };
    world.desire_and_apply(&[elsewhere]);
    assert_eq!(world.led_to(9), [backend(1)].into(), "the prober has no news, so no verdict would come");
    world.assert_as_new();
}

#[test]
fn services_that_swap_their_names_go_on_in_step_with_the_prober() {
    let mut world = World::new();
    let [one, two] = [probed(service(1, &[1])), probed(service(2, &[1]))];
    world.desire_and_apply(&[one.clone(), two.clone()]);
    world.probe("s1", backend(1), UP);
    world.apply();
    world.desire_and_apply(&[Service { name: name("s2"), ..one }, Service { name: name("s1"), ..two }]);
    world.assert_as_new();
    for service in ["s1", "s2"] {
        world.probe(service, backend(1), DOWN);
        world.probe(service, backend(1), UP);
    }
    world.apply();
    assert_eq!((world.led_to(1), world.led_to(2)), ([backend(1)].into(), [backend(1)].into()));
}

#[test]
fn a_new_backend_is_not_known_until_its_first_verdict() {
    let mut world = World::new();
    world.desire_and_apply(&[probed(service(1, &[1]))]);
    assert_eq!(world.engine.probe_targets()[0].known, None);
    world.probe("s1", backend(1), UP);
    assert_eq!(world.engine.probe_targets()[0].known, Some(UP));
}

#[test]
fn reports_of_strangers_are_ignored() {
    let mut world = World::new();
    world.desire_and_apply(&[probed(service(1, &[1]))]);
    for (service, number) in [("s2", 1), ("s1", 2)] {
        let verdict = Some(Verdict::Up);
        world.engine.report(Report {
            service: name(service),
            backend: backend(number),
            verdict,
            last_failure: None,
        });
    }
    assert!(!world.engine.is_dirty());
}

#[test]
fn a_verdict_that_could_not_be_applied_survives_a_new_name() {
    let mut world = World::new();
    world.desire_and_apply(&[trusting(service(1, &[1, 2]))]);
    world.probe("s1", backend(1), DOWN);
    world.apply_failing_after(0).unwrap_err();
    world.desire_and_apply(&[Service { name: name("web"), ..trusting(service(1, &[1, 2])) }]);
    assert_eq!(world.led_to(1), [backend(2)].into());
    world.assert_as_new();
}
