// SPDX-License-Identifier: Apache-2.0
#pragma once
// `apply_filter()` and `apply_test()` are the filters and tests of Jinja, with
// `tojson` as transformers defines it.

#include "tessera/text/chat/jinja_members.h"

#include <string>

namespace tessera::text::jinja {

/// `subject | name(arguments)`.
/// @throws tessera::Error if the filter is unknown, or refuses its arguments.
Value apply_filter(
    const std::string& name,
    const Value& subject,
    const Arguments& arguments,
    Budget& budget);

/// `subject is name(arguments)`.
bool apply_test(
    const std::string& name,
    const Value& subject,
    const Arguments& arguments,
    Budget& budget);

/// Whether there is a filter or a test of the name.
bool is_filter(const std::string& name);
bool is_test(const std::string& name);

} // namespace tessera::text::jinja
