// Runs the tests of the C++ core. Prints what failed, and exits with status 1 if anything did. With the name of an
// instruction set as argument, it checks that the library has chosen it on this machine, and runs a few tests.

#include "check.h"
#include "tests.h"

int main(int count, char **arguments) {
    if (count > 1) test_isa_in_use(arguments[1]);
    test_isa();
    test_interface();
    if (count == 1) {
        test_number();
        test_forward();
        test_backward();
        test_summary();
    }
    printf("%lld passed, %lld failed\n", (long long)tally.passed, (long long)tally.failed);
    return tally.failed != 0;
}
