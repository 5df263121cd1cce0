// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/plans/merge_events.h"

#include <cstddef>
#include <map>
#include <utility>

namespace tessera::sharding {

namespace {

/// The events of a forward or of a backward: [first, last) of a record.
struct Segment {
  const std::vector<PlanEvent>* events;
  size_t first;
  size_t last;
};

std::vector<Segment> segments_of(const std::vector<PlanEvent>& events) {
  std::vector<Segment> segments;
  for (size_t i = 0; i < events.size(); ++i) {
    const bool begins = i == 0 ||
                        events[i].in_backward != events[i - 1].in_backward ||
                        events[i - 1].kind == PlanEvent::Kind::kBackwardEnd;
    if (begins) {
      segments.push_back({&events, i, i});
    }
    segments.back().last = i + 1;
  }
  return segments;
}

/// Where each event is the last time.
class LastPlaces {
 public:
  explicit LastPlaces(const Segment& segment) {
    for (size_t i = segment.first; i < segment.last; ++i) {
      places_[key_of((*segment.events)[i])] = i;
    }
  }

  bool is_after(size_t place, const PlanEvent& event) const {
    const auto found = places_.find(key_of(event));
    return found != places_.end() && found->second > place;
  }

 private:
  using Key = std::pair<PlanEvent::Kind, std::vector<int>>;

  static Key key_of(const PlanEvent& event) {
    return {event.kind, event.groups};
  }

  std::map<Key, size_t> places_;
};

/// Appends both to `merged`. @return the number of events that are in both;
/// nothing if their orders contradict each other.
std::optional<size_t> merge_segments(
    const Segment& a,
    const Segment& b,
    std::vector<PlanEvent>& merged) {
  const LastPlaces in_a(a);
  const LastPlaces in_b(b);
  size_t i = a.first;
  size_t j = b.first;
  size_t shared = 0;
  while (i < a.last && j < b.last) {
    const PlanEvent& of_a = (*a.events)[i];
    const PlanEvent& of_b = (*b.events)[j];
    if (of_a == of_b) {
      merged.push_back(of_a);
      ++i;
      ++j;
      ++shared;
      continue;
    }
    const bool follows_in_a = in_a.is_after(i, of_b);
    const bool follows_in_b = in_b.is_after(j, of_a);
    if (follows_in_a && follows_in_b) {
      return std::nullopt;
    }
    // Where nothing is known of their order, that of registration.
    const bool takes_a = follows_in_a != follows_in_b
                             ? follows_in_a
                             : (of_a.groups < of_b.groups) != of_a.in_backward;
    merged.push_back(takes_a ? of_a : of_b);
    ++(takes_a ? i : j);
  }
  for (; i < a.last; ++i) {
    merged.push_back((*a.events)[i]);
  }
  for (; j < b.last; ++j) {
    merged.push_back((*b.events)[j]);
  }
  return shared;
}

} // namespace

std::optional<std::vector<PlanEvent>> merge_events(
    const std::vector<PlanEvent>& a,
    const std::vector<PlanEvent>& b) {
  const std::vector<Segment> of_a = segments_of(a);
  const std::vector<Segment> of_b = segments_of(b);
  if (of_a.size() != of_b.size()) {
    return std::nullopt;
  }
  std::vector<PlanEvent> merged;
  size_t shared = 0;
  for (size_t s = 0; s < of_a.size(); ++s) {
    const auto both = merge_segments(of_a[s], of_b[s], merged);
    if (!both) {
      return std::nullopt;
    }
    shared += *both;
  }
  if (2 * shared < merged.size()) {
    return std::nullopt;
  }
  return merged;
}

} // namespace tessera::sharding
