// Charts of a job: each element with data-chart is given to the module of that name, which draws into it.
for (const element of document.querySelectorAll("[data-chart]")) {
  import(`/static/${element.dataset.chart}.js`)
    .then((module) => module.mount(element))
    .catch((error) => {
      element.dataset.failed = "true"; // what the server drew stays
      console.warn(`chart ${element.dataset.chart}: ${error}`);
    });
}
