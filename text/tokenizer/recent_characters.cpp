// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/recent_characters.h"

#include "tessera/runtime/core/format.h"
#include "tessera/text/tokenizer/characters.h"
#include "tessera/text/tokenizer/utf8.h"

#include <algorithm>
#include <bitset>
#include <iterator>

namespace tessera::text {

namespace {

struct RecentRun {
  char32_t first;
  char32_t last;
  const char* category;
};

// In Unicode 16 and not in 14, in order.
constexpr RecentRun kRecentRuns[] = {
    {0x897, 0x897, "Mn"},     {0xcf3, 0xcf3, "Mc"},
    {0xece, 0xece, "Mn"},     {0x1b4e, 0x1b4f, "Po"},
    {0x1b7f, 0x1b7f, "Po"},   {0x1c89, 0x1c89, "Lu"},
    {0x1c8a, 0x1c8a, "Ll"},   {0x2427, 0x2429, "So"},
    {0x2ffc, 0x2fff, "So"},   {0x31e4, 0x31e5, "So"},
    {0x31ef, 0x31ef, "So"},   {0xa7cb, 0xa7cc, "Lu"},
    {0xa7cd, 0xa7cd, "Ll"},   {0xa7da, 0xa7da, "Lu"},
    {0xa7db, 0xa7db, "Ll"},   {0xa7dc, 0xa7dc, "Lu"},
    {0x105c0, 0x105f3, "Lo"}, {0x10d40, 0x10d49, "Nd"},
    {0x10d4a, 0x10d4d, "Lo"}, {0x10d4e, 0x10d4e, "Lm"},
    {0x10d4f, 0x10d4f, "Lo"}, {0x10d50, 0x10d65, "Lu"},
    {0x10d69, 0x10d6d, "Mn"}, {0x10d6e, 0x10d6e, "Pd"},
    {0x10d6f, 0x10d6f, "Lm"}, {0x10d70, 0x10d85, "Ll"},
    {0x10d8e, 0x10d8f, "Sm"}, {0x10ec2, 0x10ec4, "Lo"},
    {0x10efc, 0x10eff, "Mn"}, {0x1123f, 0x11240, "Lo"},
    {0x11241, 0x11241, "Mn"}, {0x11380, 0x11389, "Lo"},
    {0x1138b, 0x1138b, "Lo"}, {0x1138e, 0x1138e, "Lo"},
    {0x11390, 0x113b5, "Lo"}, {0x113b7, 0x113b7, "Lo"},
    {0x113b8, 0x113ba, "Mc"}, {0x113bb, 0x113c0, "Mn"},
    {0x113c2, 0x113c2, "Mc"}, {0x113c5, 0x113c5, "Mc"},
    {0x113c7, 0x113ca, "Mc"}, {0x113cc, 0x113cd, "Mc"},
    {0x113ce, 0x113ce, "Mn"}, {0x113cf, 0x113cf, "Mc"},
    {0x113d0, 0x113d0, "Mn"}, {0x113d1, 0x113d1, "Lo"},
    {0x113d2, 0x113d2, "Mn"}, {0x113d3, 0x113d3, "Lo"},
    {0x113d4, 0x113d5, "Po"}, {0x113d7, 0x113d8, "Po"},
    {0x113e1, 0x113e2, "Mn"}, {0x116d0, 0x116e3, "Nd"},
    {0x11b00, 0x11b09, "Po"}, {0x11bc0, 0x11be0, "Lo"},
    {0x11be1, 0x11be1, "Po"}, {0x11bf0, 0x11bf9, "Nd"},
    {0x11f00, 0x11f01, "Mn"}, {0x11f02, 0x11f02, "Lo"},
    {0x11f03, 0x11f03, "Mc"}, {0x11f04, 0x11f10, "Lo"},
    {0x11f12, 0x11f33, "Lo"}, {0x11f34, 0x11f35, "Mc"},
    {0x11f36, 0x11f3a, "Mn"}, {0x11f3e, 0x11f3f, "Mc"},
    {0x11f40, 0x11f40, "Mn"}, {0x11f41, 0x11f41, "Mc"},
    {0x11f42, 0x11f42, "Mn"}, {0x11f43, 0x11f4f, "Po"},
    {0x11f50, 0x11f59, "Nd"}, {0x11f5a, 0x11f5a, "Mn"},
    {0x1342f, 0x1342f, "Lo"}, {0x13439, 0x1343f, "Cf"},
    {0x13440, 0x13440, "Mn"}, {0x13441, 0x13446, "Lo"},
    {0x13447, 0x13455, "Mn"}, {0x13460, 0x143fa, "Lo"},
    {0x16100, 0x1611d, "Lo"}, {0x1611e, 0x16129, "Mn"},
    {0x1612a, 0x1612c, "Mc"}, {0x1612d, 0x1612f, "Mn"},
    {0x16130, 0x16139, "Nd"}, {0x16d40, 0x16d42, "Lm"},
    {0x16d43, 0x16d6a, "Lo"}, {0x16d6b, 0x16d6c, "Lm"},
    {0x16d6d, 0x16d6f, "Po"}, {0x16d70, 0x16d79, "Nd"},
    {0x18cff, 0x18cff, "Lo"}, {0x1b132, 0x1b132, "Lo"},
    {0x1b155, 0x1b155, "Lo"}, {0x1cc00, 0x1ccef, "So"},
    {0x1ccf0, 0x1ccf9, "Nd"}, {0x1cd00, 0x1ceb3, "So"},
    {0x1d2c0, 0x1d2d3, "No"}, {0x1df25, 0x1df2a, "Ll"},
    {0x1e030, 0x1e06d, "Lm"}, {0x1e08f, 0x1e08f, "Mn"},
    {0x1e4d0, 0x1e4ea, "Lo"}, {0x1e4eb, 0x1e4eb, "Lm"},
    {0x1e4ec, 0x1e4ef, "Mn"}, {0x1e4f0, 0x1e4f9, "Nd"},
    {0x1e5d0, 0x1e5ed, "Lo"}, {0x1e5ee, 0x1e5ef, "Mn"},
    {0x1e5f0, 0x1e5f0, "Lo"}, {0x1e5f1, 0x1e5fa, "Nd"},
    {0x1e5ff, 0x1e5ff, "Po"}, {0x1f6dc, 0x1f6dc, "So"},
    {0x1f774, 0x1f776, "So"}, {0x1f77b, 0x1f77f, "So"},
    {0x1f7d9, 0x1f7d9, "So"}, {0x1f8b2, 0x1f8bb, "So"},
    {0x1f8c0, 0x1f8c1, "So"}, {0x1fa75, 0x1fa77, "So"},
    {0x1fa87, 0x1fa89, "So"}, {0x1fa8f, 0x1fa8f, "So"},
    {0x1faad, 0x1faaf, "So"}, {0x1fabb, 0x1fabf, "So"},
    {0x1fac6, 0x1fac6, "So"}, {0x1face, 0x1facf, "So"},
    {0x1fada, 0x1fadc, "So"}, {0x1fadf, 0x1fadf, "So"},
    {0x1fae8, 0x1fae9, "So"}, {0x1faf7, 0x1faf8, "So"},
    {0x1fbcb, 0x1fbef, "So"}, {0x2b739, 0x2b739, "Lo"},
    {0x2ebf0, 0x2ee5d, "Lo"}, {0x31350, 0x323af, "Lo"}};

// Not of the categories L and Nl, or older and given the property since.
constexpr CodePoints kRecentAlphabetic[] = {
    {0x363, 0x36f},     {0x897, 0x897},     {0xc04, 0xc04},
    {0xcf3, 0xcf3},     {0xf82, 0xf83},     {0x1dd3, 0x1de6},
    {0x10d69, 0x10d69}, {0x10efc, 0x10efc}, {0x11080, 0x11081},
    {0x11241, 0x11241}, {0x113b8, 0x113c0}, {0x113c2, 0x113c2},
    {0x113c5, 0x113c5}, {0x113c7, 0x113ca}, {0x113cc, 0x113cd},
    {0x11f00, 0x11f01}, {0x11f03, 0x11f03}, {0x11f34, 0x11f3a},
    {0x11f3e, 0x11f40}, {0x1611e, 0x1612e}, {0x1e08f, 0x1e08f}};
constexpr CodePoints kRecentLowercase[] = {
    {0x10fc, 0x10fc},
    {0xa7f2, 0xa7f4},
    {0xab69, 0xab69},
    {0x1e030, 0x1e06d}};
constexpr CodePoints kRecentHan[] = {
    {0x2b739, 0x2b739},
    {0x2ebf0, 0x2ee5d},
    {0x31350, 0x323af}};

// Code points are looked up only if one of their 256 is recent.
constexpr size_t kPageBits = 8;
using Pages = std::bitset<(0x110000 >> kPageBits)>;

template <typename Runs>
void mark_pages(const Runs& runs, Pages& pages) {
  for (const auto& run : runs) {
    for (size_t page = run.first >> kPageBits; page <= run.last >> kPageBits;
         ++page) {
      pages.set(page);
    }
  }
}

Pages make_pages() {
  Pages pages;
  mark_pages(kRecentRuns, pages);
  mark_pages(kRecentAlphabetic, pages);
  mark_pages(kRecentLowercase, pages);
  return pages;
}

bool is_in_recent_page(char32_t c) {
  static const Pages kPages = make_pages();
  return kPages[c >> kPageBits];
}

template <typename Runs>
auto find_run(const Runs& runs, char32_t c) {
  const auto* const next = std::upper_bound(
      std::begin(runs), std::end(runs), c, [](char32_t value, const auto& run) {
        return value < run.first;
      });
  return next != std::begin(runs) && c <= std::prev(next)->last
             ? std::prev(next)
             : nullptr;
}

bool is_recent(char32_t c) {
  return is_in_recent_page(c) && (find_run(kRecentRuns, c) != nullptr ||
                                  find_run(kRecentAlphabetic, c) != nullptr ||
                                  find_run(kRecentLowercase, c) != nullptr);
}

template <typename Runs>
std::string items_of(const Runs& runs) {
  std::string items;
  for (const auto& run : runs) {
    items += formatted(
        "\\x{{{:x}}}-\\x{{{:x}}}",
        static_cast<unsigned>(run.first),
        static_cast<unsigned>(run.last));
  }
  return items;
}

std::string items_of_category(std::string_view wanted) {
  std::string items;
  for (const RecentRun& run : kRecentRuns) {
    const std::string_view category = run.category;
    const bool has_case =
        category == "Lu" || category == "Ll" || category == "Lt";
    if (category == wanted || category.substr(0, 1) == wanted ||
        (wanted == "L&" && has_case)) {
      items += items_of(std::initializer_list<RecentRun>{run});
    }
  }
  return items;
}

} // namespace

const char* recent_category(char32_t c) {
  if (!is_in_recent_page(c)) {
    return nullptr;
  }
  const RecentRun* const run = find_run(kRecentRuns, c);
  return run == nullptr ? nullptr : run->category;
}

bool has_recent_character(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0xcd) { // below U+0340
      i += lead < 0x80 ? 1 : 2;
      continue;
    }
    if (is_recent(code_point_at(text, i))) {
      return true;
    }
    i += utf8_length(text, i);
  }
  return false;
}

std::string recent_items(std::string_view property) {
  if (property == "Alphabetic") {
    return items_of_category("L") + items_of_category("Nl") +
           items_of(kRecentAlphabetic);
  }
  if (property == "Lowercase") {
    return items_of_category("Ll") + items_of(kRecentLowercase);
  }
  if (property == "Uppercase") {
    return items_of_category("Lu");
  }
  if (property == "sc:Han") {
    return items_of(kRecentHan);
  }
  return items_of_category(property);
}

} // namespace tessera::text
