// The link that the console prints holds the token behind "#": browsers send that part to nobody, and no log has it.
const form = document.getElementById("enter");

function enterByLink() {
  const token = decodeURIComponent(location.hash.slice(1));
  if (form && new URLSearchParams(location.search).has("next")) { // the part of the page that was asked for
    form.elements.next.value += location.hash;
    return false;
  }
  history.replaceState(null, "", location.pathname + location.search);
  if (!form || !token) return false;
  form.elements.token.value = token;
  form.submit();
  return true;
}

addEventListener("hashchange", enterByLink); // the link in a tab that shows this page already: nothing is loaded anew
if (!enterByLink() && form) {
  // A link from a chat or a ticket comes without the cookie, a call of our own with it: who is logged in goes on.
  fetch("/session", { cache: "no-store" }).then((answer) => {
    if (answer.status === 204 && !form.elements.token.value) location.replace(form.elements.next.value);
  });
}
