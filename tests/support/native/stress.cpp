// Random programs through the pool, under a sanitizer: stress SCHEDULES SEED. No deadlock (it
// ends), no race, no leak, and the memory that the program in order would leave.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "pool.hpp"

using namespace recurra;

namespace {

constexpr int kBytes = 24;

struct Step {
  Accesses accesses;
  Word name;
};

std::vector<Step> program(std::mt19937_64& rng) {
  auto some = [&](std::size_t most) {
    std::vector<Segment> list;
    for (std::size_t n = rng() % (most + 1); n > 0; --n) {
      const Word start = rng() % (kBytes - 4);
      list.push_back({start, start + 1 + rng() % 4});
    }
    return list;
  };
  std::vector<Step> steps(1 + rng() % 24);
  for (Step& step : steps) {
    step = {{some(3), some(2)}, rng()};
    if (rng() % 40 == 0) step.accesses.writes = {{0, ~Word{0}}};  // a barrier
  }
  return steps;
}

// Plain bytes: two steps that touch one without an order between them are a race that is seen.
void run(const Step& step, Word* memory) {
  Word seen = step.name;
  auto each = [&](const std::vector<Segment>& list, auto&& use) {
    for (const Segment& s : list) {
      for (Word k = s.start; k < s.stop && k < kBytes; ++k) use(memory[k]);
    }
  };
  each(step.accesses.reads, [&](Word& x) { seen = (seen ^ x) * 0x9E3779B97F4A7C15ull + 1; });
  each(step.accesses.writes, [&](Word& x) { x = seen; });
}

}  // namespace

int main(int argc, char** argv) {
  const long schedules = argc > 1 ? std::atol(argv[1]) : 1000;
  std::mt19937_64 rng(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
  for (long n = 0; n < schedules;) {
    const int size = 1 + static_cast<int>(rng() % 64);
    Pool pool(static_cast<int>(rng() % 4), size, 1 + rng() % 8);
    for (int round = 0; round < 50 && n < schedules; ++round, ++n) {
      const std::vector<Step> steps = program(rng);
      Word memory[kBytes] = {}, expected[kBytes] = {};
      for (const Step& step : steps) run(step, expected);
      for (const Step& step : steps) pool.offer(step.accesses, [&] { run(step, memory); });
      pool.drain();
      for (int k = 0; k < kBytes; ++k) {
        if (memory[k] != expected[k]) {
          std::printf("schedule %ld, window %d: byte %d differs\n", n, size, k);
          return 1;
        }
      }
    }
  }
  std::printf("%ld schedules\n", schedules);
}
