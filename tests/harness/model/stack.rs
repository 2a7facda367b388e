//! Replies that come up through the node's own network stack: what `tc_nat` must do.

use super::{
    Action, Node, Outcome, Reason,
    rewrite::{End, translate},
    view::{self, View},
};

impl Node {
    /// What becomes of a frame that the stack sends out of an interface. [`Action::Pass`] is to go on.
    ///
    /// `None` for a reply that lies about its length, of which the stack makes none.
    pub fn tc_nat(&mut self, frame: &[u8]) -> Option<Outcome> {
        let (seen, view) = view::read(frame);
        let (reason, frame, service, backend) = match view {
            Err(reason) => (reason, frame.to_vec(), None, None),
            Ok(view) if !self.is_nat_backend(view.source, view.protocol) => {
                (Reason::PassNoService, frame.to_vec(), None, None)
            }
            Ok(view) if !view.lengths_agree(frame) => return None,
            Ok(view) => self.reply_from_stack(frame, &view),
        };
        let bytes = seen.map_or(0, |seen| seen.bytes());
        self.tc_nat_ledger.count(reason, bytes);
        Some(Outcome {
            action: Action::Pass,
            frame,
            metadata: None,
            reason,
            service,
            backend,
            redirect: None,
            bytes,
        })
    }

    fn reply_from_stack(&mut self, frame: &[u8], view: &View) -> (Reason, Vec<u8>, Option<u32>, Option<u16>) {
        let found = self.flows.find_reply(view.destination, view.protocol, |service, number| {
            self.backend_is(service, number, view.source, view.protocol)
        });
        let Some((place, flow)) = found else {
            return (Reason::PassNotAReply, frame.to_vec(), None, None);
        };
        self.flows.touch(place, view.tcp_flags, view.protocol == 6, false);
        let mut translated = frame.to_vec();
        // The stack has counted the hop.
        translate(&mut translated, view, End::Source, self.services[&flow.service].address, 0);
        (Reason::ForwardReplyHandoff, translated, Some(flow.service), Some(flow.backend))
    }
}
