// Random programs of several callers through the issuing thread and a stub, under a sanitizer:
// stress_streams PROGRAMS SEED. It ends, no race, no leak, and kernels keep the order of memory.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "issuing_thread.hpp"
#include "stub_driver.hpp"

using namespace recurra;

namespace {

constexpr Word kBytes = 40;

struct Told {
  Word ticket;
  Accesses accesses;
};

std::vector<Launch> segment(std::mt19937_64& rng) {
  auto some = [&](std::size_t most) {
    std::vector<Segment> list;
    for (std::size_t n = rng() % (most + 1); n > 0; --n) {
      const Word start = rng() % kBytes;
      list.push_back({start, start + 1 + rng() % 6});
    }
    return list;
  };
  std::vector<Launch> launches(1 + rng() % 9);
  for (Launch& l : launches) {
    l.accesses = {some(2), some(2)};
    l.kernel.parameters = {rng()};
    l.kernel.us = static_cast<double>(rng() % 60);
    if (rng() % 4 == 0) l.kernel.workspace = 1 + rng() % 2000;
  }
  return launches;
}

// One caller: a few segments that come again and again, with other parameters.
void call(IssuingThread& thread, std::uint64_t seed, std::vector<Told>& told) {
  std::mt19937_64 rng(seed);
  std::vector<std::vector<Launch>> known(3);
  for (auto& one : known) one = segment(rng);
  for (int n = 0; n < 12; ++n) {
    std::vector<Launch> next = rng() % 8 ? known[rng() % 3] : segment(rng);
    for (Launch& l : next) l.kernel.parameters[0] = rng() % 3;
    Word ticket = *thread.offer(next);
    for (Launch& l : next) told.push_back({ticket++, std::move(l.accesses)});
    if (rng() % 9 == 0) thread.retire();
    if (rng() % 9 == 0) thread.settle();
    if (rng() % 9 == 0) thread.held();
  }
}

bool overlap(const std::vector<Segment>& some, const std::vector<Segment>& others) {
  return std::ranges::any_of(some, [&](const Segment& a) {
    return std::ranges::any_of(others, [&](const Segment& b) {
      return a.start < b.stop && b.start < a.stop;
    });
  });
}

bool in_order(std::vector<Told>& told, const StubDriver& driver) {
  std::ranges::sort(told, {}, &Told::ticket);
  std::vector<std::pair<double, double>> when(told.size());
  if (driver.spans.size() != told.size() || !driver.misuses.empty()) return false;
  for (const auto& [ticket, start, end] : driver.spans) when[ticket] = {start, end};
  for (const StubDriver::Ran& r : driver.ran) {  // a workspace is written
    if (!r.kernel.workspace) continue;
    const Word at = r.kernel.parameters.back();
    told[r.ticket].accesses.writes.push_back({at, at + r.kernel.workspace});
  }
  for (std::size_t late = 0; late < told.size(); ++late) {
    for (std::size_t early = 0; early < late; ++early) {
      const Accesses &a = told[early].accesses, &b = told[late].accesses;
      const bool follows = overlap(a.writes, b.reads) || overlap(a.reads, b.writes) ||
                           overlap(a.writes, b.writes);
      if (follows && when[late].first < when[early].second) return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const long programs = argc > 1 ? std::atol(argv[1]) : 100;
  std::mt19937_64 rng(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
  for (long n = 0; n < programs; ++n) {
    const auto driver = std::make_shared<StubDriver>();
    std::vector<std::vector<Told>> told(1 + rng() % 3);
    {
      IssuingThread thread(driver, 1 + static_cast<int>(rng() % 64),
                           1 + static_cast<int>(rng() % 8), rng() % 6, 1 + rng() % 40);
      std::vector<std::thread> callers;
      for (auto& mine : told) {
        callers.emplace_back([&thread, &mine, seed = rng()] { call(thread, seed, mine); });
      }
      for (std::thread& caller : callers) caller.join();
    }
    std::vector<Told> all;
    for (auto& mine : told) all.insert(all.end(), mine.begin(), mine.end());
    if (!in_order(all, *driver) || driver->blocks() || driver->streams() || driver->graphs()) {
      std::printf("program %ld went wrong\n", n);
      return 1;
    }
  }
  std::printf("%ld programs\n", programs);
}
