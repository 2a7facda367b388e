use tidegate::{datapath::*, model::*};
#[test]
fn loads() {
    tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).init();
    let options = Options { pins: Pins::new("/sys/fs/bpf/tg-smoke"), capacity: Capacity::default() };
    let started = std::time::Instant::now();
    {
        let kernel = Kernel::open(&options).unwrap_or_else(|e| panic!("{e}"));
        println!("open {:?}", started.elapsed());
        println!("{:?}", kernel.adopt().map(|a| a.services.len()));
        let mut frame = vec![0u8; 60];
        println!("{:?}", kernel.run("xdp_lb", &frame, 1));
        frame[12] = 8;
        println!("{:?}", kernel.run("xdp_lb", &frame, 1).unwrap().action);
        println!("{:?}", kernel.ledger(0));
    }
    let started = std::time::Instant::now();
    {
        let kernel = Kernel::open(&options).unwrap_or_else(|e| panic!("{e}"));
        println!("reopen {:?}", started.elapsed());
        println!("{:?}", kernel.ledger(0));
    }
    for p in libbpf_rs::query::ProgInfoIter::default() { if p.name.to_string_lossy().starts_with("xdp_") || p.name.to_string_lossy().starts_with("tc_") { println!("{:?} {}", p.name, p.verified_insns); } }
    println!("{:?}", detach_all(&options.pins));
}
