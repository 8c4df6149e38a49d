"""The one engine that simulator and server both drive: admission, transition, pace, coordinator."""
